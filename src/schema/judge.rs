//! TODO: schema/judge
