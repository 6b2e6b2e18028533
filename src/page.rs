//! TODO: page
