//! One request to a server, with all that a decision about it may look at.

use std::time::SystemTime;

use super::access::Access;
use super::principal::Principal;
use super::session_facts::SessionFacts;
use crate::intent::Intent;

/// What [`admit`](super::admit) is asked.
#[derive(Clone, Debug)]
pub struct AdmissionRequest<'a> {
    /// On whose behalf it is made.
    pub principal: &'a Principal,
    /// What is asked of which server.
    pub access: Access,
    /// The arguments as they go to the server: one raw JSON object without duplicate keys, or empty where the request
    /// has none.
    pub arguments: &'a [u8],
    /// The intent that was stated for it, where one can be.
    pub intent: Option<Intent<'a>>,
    /// The client's own name for itself, which nothing proves, or empty.
    pub client: &'a str,
    /// What went on in its session before.
    pub session: SessionFacts,
    /// The time of day.
    pub now: SystemTime,
}
