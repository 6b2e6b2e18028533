//! A JSON text that is changed where it has to be, and nowhere else: order, layout, indentation, line
//! ends and comments stay, byte for byte.
//!
//! For our own config, and for files of other programs of the same form. Each change is made by
//! inserting or cutting out a part of the text; what comes of it is read once more, and is used only
//! if it says what was meant. Files are not known here.

mod edited_json;
mod layout;
mod place;
mod refused;
mod servers;

pub use self::edited_json::EditedJson;
pub use self::layout::{WrittenValue, rendered};
pub use self::refused::EditRefused;
pub use self::servers::{Servers, check_new_name};
