//! One file per command: what it asks for, and what it prints.

pub(super) mod activity;
pub(super) mod call;
pub(super) mod config;
pub(super) mod demo;
pub(super) mod login;
pub(super) mod serve;
pub(super) mod stdio;
pub(super) mod tools;
