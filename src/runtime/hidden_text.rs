//! Characters that a reader cannot see or that change how others are displayed: control characters, invisible
//! characters, and characters that reverse the order of text. Any of them can make one text look like another. The list
//! is Unicode's (`icu_properties`).

use icu_properties::props::{DefaultIgnorableCodePoint, GeneralCategory};
use icu_properties::{CodePointMapData, CodePointSetData};

/// Whether a character is invisible or changes how others are displayed. Line ends and tabs count.
pub fn is_hidden(letter: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Surrogate, Unassigned,
    };
    if letter.is_ascii() {
        return letter.is_ascii_control();
    }
    let category = CodePointMapData::<GeneralCategory>::new().get(letter);
    let hidden = matches!(
        category,
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Surrogate | Unassigned
    );
    // The blank Braille pattern is classed as a symbol, but looks like a space.
    hidden
        || letter == '\u{2800}'
        || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_and_reordering_characters_are_hidden() {
        let hidden = "\0\n\u{7f}\u{85}\u{ad}\u{34f}\u{115f}\u{1160}\u{180b}\u{200b}\u{2028}\u{202e}\u{2066}\u{2800}\u{3164}\
                      \u{e000}\u{feff}\u{ffa0}\u{fff9}\u{1d173}\u{e0041}\u{10ffff}";
        assert_eq!(hidden.chars().find(|letter| !is_hidden(*letter)), None);
        let ranges = CodePointSetData::new::<DefaultIgnorableCodePoint>();
        let ignorable: Vec<char> =
            ranges.iter_ranges().flatten().filter_map(char::from_u32).collect();
        assert!(ignorable.len() > 4000 && ignorable.into_iter().all(is_hidden));
        let seen = " a~é日א\u{301}📖\u{a0}\u{2003}";
        assert_eq!(seen.chars().find(|letter| is_hidden(*letter)), None);
    }
}
