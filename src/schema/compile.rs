//! TODO: schema/compile
