//! TODO: upstream/supervisor
