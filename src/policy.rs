//! Who may ask what of which server: the identity behind a request, and the decision whether it goes on. Pure.
//!
//! [`admit`] decides about every request to a server, by whichever door it came, and nothing else makes a
//! [`Permit`]; of a [`PendingApproval`] one is made by the word of the room where approvals wait. What a decision is about (intent, tools) is asked of their own rooms. What follows from it (a
//! record, a reply) is the caller's.
//!
//! What [`admit`] would say of a request that is not made yet is [`foresee`]'s.
//!
//! Before a request is read, the API key and the names of hosts and origins are checked by the faces
//! ([`HttpAuth`], [`host_check`]); which tokens there are is `identity`'s.
//!
//! The operator's rules (Cedar) are [`rules`]; what a principal is shown in lists is [`visible`].
//!
//! Last come the [`limits`]: a permit holds the places that its request occupies, and a request for which there is none
//! free waits ([`Queued`]). What has waited, for its turn or for a person, is decided about once more ([`admit_again`]).
//!
//! A new check is a function from an [`AdmissionRequest`] to a [`Warning`] or a [`Denial`] in a file of its own, asked in
//! its place in [`admit`].

mod access;
mod admission;
mod approval;
mod call_digest;
mod denial;
pub mod host_check;
mod http_auth;
mod intent_matrix;
pub mod limits;
mod permit;
mod principal;
mod quarantine;
mod request;
mod ruled;
pub mod rules;
mod scope;
mod session_facts;
mod settings;

pub use access::{
    Access, COMPLETION_COMPLETE, PROMPTS_GET, Reference, ResourceRequest, TOOLS_CALL, ToolAccess,
};
pub use admission::{Admission, Foreseen, admit, admit_again, foresee};
pub use approval::{ApprovalSubject, Approved, PendingApproval};
pub use call_digest::{CallDigest, MAX_ARGUMENTS_BYTES};
pub use denial::{
    ApprovalDemand, ApprovalDenial, Denial, DenialKind, LimitReached, Mismatch, NotApproved,
    RuleDenial, Warning,
};
pub use http_auth::HttpAuth;
pub use limits::{BreakerChange, CallLimits, ServerOutcome};
pub use permit::{Leave, Permit, Queued};
pub use principal::{AgentToken, JwtSubject, Principal, Scope};
pub use request::AdmissionRequest;
pub use ruled::{Visibility, visible};
pub use session_facts::{FactsCell, SessionFacts, WINDOW_SECONDS};
pub use settings::Settings;
