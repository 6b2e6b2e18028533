//! Compiling an output schema.

/// A compiled output schema.
#[derive(Debug)]
pub struct Schema {}
