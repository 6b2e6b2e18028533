//! TODO: catalog/snapshot
