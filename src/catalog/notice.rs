//! What clients may want to be told of the lists that they have read.

use std::sync::Arc;

/// Something that clients may want to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The set of tools is another.
    Tools,
    /// Our own tools are others, or described in other words.
    OwnTools,
    /// The set of prompts is another.
    Prompts,
    /// The set of resources or templates is another.
    Resources,
    /// The resource of that URI, as clients know it, has changed.
    Updated(Arc<str>),
}
