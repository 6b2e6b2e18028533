//! TODO: catalog/search
