//! Admission: identifies the principal behind a request and decides whether the request may be sent. Pure.
//!
//! [`admit`] decides about every request to a server, regardless of its entry point. Only it creates a [`Permit`]; the
//! approval queue turns a [`PendingApproval`] into one. Records and replies are left to the caller.
//!
//! [`forecast`] runs the same checks for a request that is not sent.
//!
//! Before a request is read, the API key and the names of hosts and origins are checked ([`HttpAuth`],
//! [`host_check`]); tokens are in [`identity`].
//!
//! The operator's rules (Cedar) are in [`rules`]; [`visible`] decides what a principal sees in lists.
//!
//! [`limits`] come last: a permit holds the slots that its request occupies, and a request that finds no free slot
//! waits ([`Queued`]). After a wait, for a slot or a person, the request is checked again ([`admit_again`]).
//!
//! Memory kept on behalf of a principal is charged to its account ([`StateAccounts`]).
//!
//! A new check is a function from an [`AdmissionRequest`] to a [`Warning`] or a [`Denial`]; add its call to
//! [`admission`](self).

mod admission;
pub mod approvals;
mod denial;
pub mod host_check;
pub mod identity;
pub mod intent;
pub mod limits;
mod permit;
mod principal;
mod request;
pub mod rules;
mod scope;
pub mod sealed_state;
pub mod sealed_task;
mod session_facts;
pub mod tool;

pub use self::principal::{StateAccount, StateAccounts, StateCharge, StateFull};
pub use self::request::{CallDigest, MAX_ARGUMENTS_BYTES};
pub use admission::{Admission, Forecast, admit, admit_again, forecast};
pub use denial::{
    ApprovalDemand, ApprovalDenial, Denial, DenialKind, LimitReached, Mismatch, NotApproved,
    RuleDenial, TooManyRefusals, Warning,
};
pub use host_check::HttpAuth;
pub use limits::{BreakerChange, CallLimits, ServerOutcome};
pub use permit::{
    ApprovalSubject, Approved, LimitDecision, PendingApproval, Permit, Queued, Settings,
};
pub use principal::{AgentToken, JwtSubject, Principal, Scope, heaviest};
pub use request::{
    Access, AdmissionRequest, COMPLETION_COMPLETE, PROMPTS_GET, Reference, ResourceRequest,
    TOOLS_CALL, TaskAccess, TaskRequest, ToolAccess,
};
pub use scope::{Visibility, token_denial, visible};
pub use session_facts::{FactsCell, SessionFacts, WINDOW_SECONDS};
