//! What comes from a server on a stream that many calls share: which message is for whom.
//!
//! Two questions, two files. [`response_matcher`] reads a message while its bytes still come, to
//! hand on a large answer before it is complete. [`destination`] reads a whole message that answers
//! no call, and decides about it. Inside a call's own HTTP stream neither is asked. Pure: who reads
//! and who writes is not known here.

mod destination;
mod response_matcher;

pub(super) use destination::{ChangedList, Destination, busy, way};
pub(super) use response_matcher::{MessageRoute, ResponseMatcher};
