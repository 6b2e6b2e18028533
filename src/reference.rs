//! The product's own reference: what it must do, and the exact words it does it in.
//!
//! An id in a comment or a test's name (FR-017, CAP-3, ACT-5) is a row of [`requirements`]; texts, names and
//! formats that others depend on are in [`contracts`]. There is no code here.

pub mod requirements {
    #![doc = include_str!("reference/requirements.md")]
}

pub mod contracts {
    #![doc = include_str!("reference/contracts.md")]
}
