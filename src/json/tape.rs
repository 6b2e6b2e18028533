//! The tape of one span.
