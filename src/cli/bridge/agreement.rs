//! What a client of an initialize-based revision and the server agreed on: the session's headers, and
//! the `initialize` that made it. Pure.

use std::cell::RefCell;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::mcp::headers::{PROTOCOL_VERSION, SESSION_ID};

/// The agreement in force, if there is one.
#[derive(Default)]
pub(super) struct Agreement(RefCell<Option<Agreed>>);

struct Agreed {
    initialize: Bytes,
    id: Option<HeaderValue>,
    version: HeaderValue,
}

impl Agreement {
    /// Begins with the answer to `initialize`.
    pub(super) fn begin(&self, initialize: Bytes, id: Option<HeaderValue>, version: HeaderValue) {
        *self.0.borrow_mut() = Some(Agreed { initialize, id, version });
    }

    /// Ends it.
    pub(super) fn forget(&self) {
        *self.0.borrow_mut() = None;
    }

    /// The headers of a message in the session.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(agreed) = &*self.0.borrow() {
            headers.insert(PROTOCOL_VERSION, agreed.version.clone());
            if let Some(id) = &agreed.id {
                headers.insert(SESSION_ID, id.clone());
            }
        }
        headers
    }

    /// The `initialize` and the revision of the session with that id; `None` if another one is in
    /// force.
    pub(super) fn of(&self, id: &HeaderValue) -> Option<(Bytes, HeaderValue)> {
        let agreed = self.0.borrow();
        let agreed = agreed.as_ref().filter(|agreed| agreed.id.as_ref() == Some(id))?;
        Some((agreed.initialize.clone(), agreed.version.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_known_by_its_id_until_another_one_begins() {
        let agreement = Agreement::default();
        let value = HeaderValue::from_static;
        assert!(agreement.headers().is_empty());
        agreement.begin(Bytes::from_static(b"{}"), Some(value("a")), value("2025-06-18"));
        assert_eq!(agreement.headers()[SESSION_ID], "a");
        assert_eq!(agreement.headers()[PROTOCOL_VERSION], "2025-06-18");
        let (initialize, version) = agreement.of(&value("a")).unwrap();
        assert_eq!((&initialize[..], version), (&b"{}"[..], value("2025-06-18")));
        agreement.begin(Bytes::from_static(b"{}"), Some(value("b")), value("2025-06-18"));
        assert!(agreement.of(&value("a")).is_none());
        agreement.forget();
        assert!(agreement.of(&value("b")).is_none() && agreement.headers().is_empty());
    }
}
