//! What rules say to a request.

use crate::policy::denial::RuleDenial;

/// What rules say to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It may pass; these rules permit it, none where the default did.
    Permitted(Vec<Box<str>>),
    /// It is refused.
    Refused(RuleDenial),
}
