//! Leave to send one request.

use super::access::Access;
use super::denial::Warning;
use super::principal::Principal;

/// Leave to send one request. Only [`admit`](super::admit) makes one, by itself or of a
/// [`PendingApproval`](super::PendingApproval), and the upstream asks for one.
#[derive(Clone, Debug)]
pub struct Permit {
    principal: Principal,
    access: Access,
    warnings: Vec<Warning>,
    rules: Vec<Box<str>>,
}

impl Permit {
    /// For what every check has let pass.
    pub(super) fn new(
        principal: Principal,
        access: Access,
        warnings: Vec<Warning>,
        rules: Vec<Box<str>>,
    ) -> Self {
        Self { principal, access, warnings, rules }
    }

    /// On whose behalf the request goes out.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// What may be asked, of which server.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// What is to be logged and recorded about this request, one decision each (ACT-1).
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The rules that permit it, or left it to a person; empty where none had to.
    #[must_use]
    pub fn rules(&self) -> &[Box<str>] {
        &self.rules
    }
}
