//! TODO: tool
