//! Held calls to legacy servers (PRO-42): the modern client of a held call is asked by the response to its request,
//! and repeats the request.

pub(super) mod answer;
pub(super) mod bounds;
pub mod calls;
pub(super) mod repeats;
