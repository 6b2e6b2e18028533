//! TODO: intent
