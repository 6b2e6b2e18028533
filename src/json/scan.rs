//! The streaming scanner.
