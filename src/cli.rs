//! The command line: parses what was typed, runs it, and turns the outcome into an exit code.
//!
//! Thin on purpose: a command's file knows what it does, [`http`] and [`backend`] how the proxy is
//! reached, [`output`] how things look. Nothing here decides about a call.

mod activity;
mod args;
mod backend;
mod call;
mod demo;
mod demo_upstream;
mod failure;
mod http;
mod output;
mod pages;
mod parse;
mod tools;
