//! TODO: downstream/session
