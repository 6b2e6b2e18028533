#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mcpproxy_fuzz::uris::run(data));
