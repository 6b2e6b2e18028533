//! User guide, one page per subject. Contains no code.
//!
//! [`clients`], [`identities`], [`calls`], [`policy`](mod@policy), [`command_line`], [`rest`], [`fleet`],
//! [`fleet_setup`], [`fleet_scale`], [`configuration`], [`tls`], [`operation`],
//! [`security`],
//! [`speed`], [`compatibility`].

pub mod clients {
    #![doc = include_str!("guide/clients.md")]
}

pub mod identities {
    #![doc = include_str!("guide/identities.md")]
}

pub mod calls {
    #![doc = include_str!("guide/calls.md")]
}

pub mod policy {
    #![doc = include_str!("guide/policy.md")]
}

pub mod command_line {
    #![doc = include_str!("guide/command_line.md")]
}

pub mod rest {
    #![doc = include_str!("guide/rest.md")]
}

pub mod fleet {
    #![doc = include_str!("guide/fleet.md")]
}

pub mod fleet_setup {
    #![doc = include_str!("guide/fleet_setup.md")]
}

pub mod fleet_scale {
    #![doc = include_str!("guide/fleet_scale.md")]
}

pub mod configuration {
    #![doc = include_str!("guide/configuration.md")]
}

pub mod tls {
    #![doc = include_str!("guide/tls.md")]
}

pub mod operation {
    #![doc = include_str!("guide/operation.md")]
}

pub mod security {
    #![doc = include_str!("guide/security.md")]
}

pub mod speed {
    #![doc = include_str!("guide/speed.md")]
}

pub mod compatibility {
    #![doc = include_str!("guide/compatibility.md")]
}
