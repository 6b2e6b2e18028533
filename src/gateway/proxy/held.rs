//! Held calls to legacy servers (PRO-42): the modern client of a held call is asked by the response to its request,
//! and repeats the request.

pub(super) mod bounds;
pub mod calls;
pub(super) mod held_answer;
pub(super) mod repeats;
