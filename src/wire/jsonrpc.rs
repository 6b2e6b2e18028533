//! TODO: wire/jsonrpc
