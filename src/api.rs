//! The REST interface under `/api/v1`, and the two health answers.

mod answer;
mod auth;
mod query;
