//! REST interface with its OpenAPI description, and the web page.

pub mod api;
pub mod page;
