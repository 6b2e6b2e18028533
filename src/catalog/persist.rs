//! TODO: catalog/persist
