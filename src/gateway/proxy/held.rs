//! Held calls: calls to legacy servers whose modern client is asked by the response to its request and repeats it (PRO-42).

pub(super) mod answer;
pub(super) mod bounds;
pub mod calls;
pub(super) mod repeats;
