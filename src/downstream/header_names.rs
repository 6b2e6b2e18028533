//! MCP's headers as the names that a header map is asked for.

use http::header::HeaderName;

use crate::mcp::headers;

/// Carries the protocol revision.
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
/// Carries the session's id.
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static(headers::SESSION_ID);
/// Carries the id of the last event that the client saw.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);
