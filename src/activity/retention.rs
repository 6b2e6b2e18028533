//! Retention (ACT-6): which records are too old, too many or too large to be kept.
