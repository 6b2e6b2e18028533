//! TODO: upstream/pending
