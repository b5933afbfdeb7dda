//! Card numbers.
//!
//! Any sixteen digits pass the Luhn check one time in ten, so it is the last question: a card begins as its issuer's
//! do, is as long, and its digits stand together or in groups of the sizes that are printed on cards.

use super::{begins, count};

/// The digits of one group of a number, and whether a line's end stands before it.
struct Group {
    from: usize,
    to: usize,
    below: bool,
}

impl Group {
    fn size(&self) -> usize {
        self.to - self.from
    }
}

/// How many characters may stand between two groups of one card.
const MAX_APART: usize = 3;
/// How a card's digits are grouped, where they do not stand together.
const SHAPES: [&[usize]; 4] = [&[4, 4, 4, 4], &[4, 6, 5], &[4, 6, 4], &[4, 4, 4, 4, 3]];
/// So many groups of four digits in a row, and no more, are a card with another number beside it; more are a table.
const MAX_ROW: usize = 5;
/// As many below each other.
const MAX_COLUMN: usize = 4;

pub(super) fn has_card(text: &[char]) -> bool {
    let mut at = 0;
    while at < text.len() {
        let starts = text[at].is_ascii_digit() && (begins(text, at) || follows_word(text, at));
        if !starts {
            at += 1;
            continue;
        }
        let groups = groups(text, at);
        at = groups.last().map_or(at + 1, |group| group.to);
        if (0..groups.len()).any(|first| is_card(text, &groups, first)) {
            return true;
        }
    }
    false
}

/// Whether a word stands right before, as in `card4111`: one that is more than the letters of a hexadecimal number.
fn follows_word(text: &[char], at: usize) -> bool {
    let letters = text[..at].iter().rev().take_while(|c| c.is_alphabetic());
    let (length, worded) = letters.fold((0, false), |(length, worded), letter| {
        (length + 1, worded || !letter.is_ascii_hexdigit())
    });
    length >= 3 && worded && begins(text, at - length)
}

/// The groups of digits from here on that may belong together.
fn groups(text: &[char], at: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    let (mut from, mut below) = (at, false);
    loop {
        let to = from + count(text, from, char::is_ascii_digit);
        groups.push(Group { from, to, below });
        let between = match text.get(to) {
            Some('/' | '_') => 1,
            _ => count(text, to, |c| matches!(c, ' ' | '-' | '.' | '\n')),
        };
        let next = to + between;
        if !(1..=MAX_APART).contains(&between) || !text.get(next).is_some_and(char::is_ascii_digit)
        {
            return groups;
        }
        below = text[to..next].contains(&'\n');
        from = next;
    }
}

/// Whether a card begins with this group. Other numbers may stand beside it.
fn is_card(text: &[char], groups: &[Group], first: usize) -> bool {
    let one = &groups[first];
    let fraction = |at: usize| {
        text.get(at) == Some(&'.') && text.get(at + 1).is_some_and(char::is_ascii_digit)
    };
    if one.from.checked_sub(1).is_some_and(fraction) {
        // The rest of a fraction or a version.
        return false;
    }
    if (13..=19).contains(&one.size())
        && !fraction(one.to)
        && is_number(text, &groups[first..=first])
    {
        return true;
    }
    SHAPES.iter().any(|shape| {
        groups.get(first..first + shape.len()).is_some_and(|card| {
            card.iter()
                .zip(*shape)
                .all(|(group, size)| group.size() == *size)
                && !is_in_table(groups, first, card)
                && is_number(text, card)
        })
    })
}

/// Whether the groups of a card of four times four digits go on before or after it as they do within.
fn is_in_table(groups: &[Group], first: usize, card: &[Group]) -> bool {
    if card.iter().any(|group| group.size() == 6) {
        return false;
    }
    let fours = |groups: &mut dyn Iterator<Item = &Group>| {
        groups.take_while(|group| group.size() == 4).count()
    };
    let row = fours(&mut groups[..first].iter().rev()) + fours(&mut groups[first..].iter());
    let column = card.iter().skip(1).any(|group| group.below);
    row > if column { MAX_COLUMN } else { MAX_ROW }
}

/// Whether these digits are a card's, and no word goes on after them.
fn is_number(text: &[char], card: &[Group]) -> bool {
    let digits: Vec<u32> = card
        .iter()
        .flat_map(|group| &text[group.from..group.to])
        .filter_map(|c| c.to_digit(10))
        .collect();
    let ends = card
        .last()
        .and_then(|last| text.get(last.to))
        .is_none_or(|after| !after.is_alphanumeric());
    ends && is_issued(&digits) && luhn(&digits)
}

/// Whether an issuer's numbers begin so and are that long.
fn is_issued(digits: &[u32]) -> bool {
    let begin = |count: usize| {
        digits
            .iter()
            .take(count)
            .fold(0, |number, digit| number * 10 + digit)
    };
    let (one, two, three, four) = (begin(1), begin(2), begin(3), begin(4));
    let lengths = if one == 4 {
        return matches!(digits.len(), 13 | 16 | 19);
    } else if matches!(two, 34 | 37) {
        15..=15
    } else if matches!(two, 51..=55) || matches!(four, 2221..=2720) {
        16..=16
    } else if matches!(two, 36 | 38 | 39) || matches!(three, 300..=305) || four == 3095 {
        14..=19
    } else if matches!(two, 62 | 65)
        || matches!(three, 644..=649)
        || matches!(four, 6011 | 3528..=3589 | 2200..=2204)
    {
        16..=19
    } else if matches!(four, 5018 | 5020 | 5038 | 5893 | 6304 | 6759 | 6761..=6763) {
        13..=19
    } else {
        return false;
    };
    lengths.contains(&digits.len())
}

fn luhn(digits: &[u32]) -> bool {
    // All zeros pass the sum and are nobody's card.
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| match (place % 2, digit * 2) {
            (0, _) => *digit,
            (_, doubled) if doubled > 9 => doubled - 9,
            (_, doubled) => doubled,
        })
        .sum();
    sum != 0 && sum.is_multiple_of(10)
}
