use rand::{RngExt as _, SeedableRng as _};

use super::*;

fn found(text: &str) -> Vec<&'static str> {
    kinds_in(text)
}

// case GRD-26
#[test]
fn each_kind_is_found_and_named() {
    let table = [
        ("ssn 123-45-6789.", "social security number"),
        ("{\"ssn\":\"123-45-6789\"}", "social security number"),
        ("4111111111111111", "card number"),
        ("card: 4111 1111 1111 1111!", "card number"),
        ("5500-0000-0000-0004", "card number"),
        ("amex 378282246310005", "card number"),
        ("order 12 4111111111111111", "card number"),
        ("４１１１１１１１１１１１１１１１", "card number"),
        ("write to ann.o'hara+x@mail.example.org.", "e-mail address"),
        ("call (212) 555-0123", "phone number"),
        ("call 212-555-0123 now", "phone number"),
        ("+1 212 555 0123", "phone number"),
        ("1-212-555-0123", "phone number"),
        ("+49 (30) 1234-5678", "phone number"),
        ("212\u{2011}555\u{2011}0123", "phone number"),
        // Cards, their groups set apart in other ways.
        ("4111.1111.1111.1111", "card number"),
        ("4111  1111  1111  1111", "card number"),
        ("4111 - 1111 - 1111 - 1111", "card number"),
        ("4111\n1111\n1111\n1111", "card number"),
        ("4111\r\n1111\t1111 \n 1111", "card number"),
        ("{\"card\":\"4111\\n1111\\n1111\\n1111\"}", "card number"),
        ("{\"card\":\"see\\n4111111111111111\"}", "card number"),
        ("3782.822463.10005", "card number"),
        ("4111\u{ad}1111\u{200b}1111\u{2060}1111", "card number"),
        ("4\u{200d}111111111111111\u{feff}", "card number"),
        ("{\"card\":\"4111\\u200b111111111111\"}", "card number"),
        ("٤١١١١١١١١١١١١١١١", "card number"),
        ("۴۱۱۱ ۱۱۱۱ ۱۱۱۱ ۱۱۱۱", "card number"),
        ("४१११११११११११११११", "card number"),
        ("𝟜𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙", "card number"),
        ("{\"card\":\"\\u0664١١١١١١١١١١١١١١١\"}", "card number"),
        ("４１１１－１１１１－１１１１－１１１１", "card number"),
        ("total 12. 4111 1111 1111 1111", "card number"),
        // E-mail, whatever stands after it and before the at sign.
        ("ann@example.com...", "e-mail address"),
        ("ann@example.com...and more", "e-mail address"),
        ("ann@example.com-", "e-mail address"),
        ("ann@example.com-urgent", "e-mail address"),
        ("ann@mail.example.com.", "e-mail address"),
        ("ann@example.xn--p1ai", "e-mail address"),
        ("ann@xn--e1afmkfd.xn--p1ai.", "e-mail address"),
        ("ann@b\u{fc}cher.example", "e-mail address"),
        ("\"ann smith\"@example.com", "e-mail address"),
        (
            "{\"to\":\"\\\"ann smith\\\"@example.com\"}",
            "e-mail address",
        ),
        ("ann\u{200b}@exam\u{ad}ple.com", "e-mail address"),
        ("ann\u{ff20}example\u{3002}com", "e-mail address"),
        ("ann@example.com1.org", "e-mail address"),
        // Phones, written otherwise or with something after them.
        ("(212)-555-0123", "phone number"),
        ("(212).555.0123", "phone number"),
        ("212-555-0123x45", "phone number"),
        ("(212) 555-0123ext4", "phone number"),
        ("(212)  555  0123", "phone number"),
        ("card4111111111111111", "card number"),
        ("4111/1111/1111/1111", "card number"),
        ("4111_1111_1111_1111", "card number"),
        ("7\n4111\n1111\n1111\n1111", "card number"),
        ("4111 1111 1111 1111 2026", "card number"),
        ("3056 930902 5904", "card number"),
        ("6011000990139424", "card number"),
        ("123-45-\n6789", "social security number"),
        ("{\"ssn\":\"123-\\n45-6789\"}", "social security number"),
        ("mail=ann%40example.org&x=1", "e-mail address"),
        ("ann@example.org: hello", "e-mail address"),
        ("ann@example.service.org", "e-mail address"),
        ("+33 1 23 45 67 89", "phone number"),
        ("+34 912 345 678", "phone number"),
        ("+4712345678", "phone number"),
        ("+12125550123", "phone number"),
        ("+49 30 1234567 or write", "phone number"),
        ("+49301234567abc", "phone number"),
        ("+49 30 1234567 20261131", "phone number"),
        ("+٤٩ ٣٠ ١٢٣٤٥٦٧", "phone number"),
        ("123\u{2010}45\u{2010}6789", "social security number"),
        ("١٢٣-٤٥-٦٧٨٩", "social security number"),
        ("12\u{200b}3-45-6789", "social security number"),
    ];
    for (text, kind) in table {
        assert_eq!(found(text), [kind], "{text}");
    }
}

#[test]
fn near_misses_pass() {
    let table = [
        "",
        "nothing personal, 42 of 1234",
        // One digit off: Luhn fails.
        "4111111111111112",
        "4111 1111 1111 1112",
        "0000000000000000",
        // Too short and too long for a card.
        "411111111111",
        "41111111111111111111",
        // Inside of a word or a longer number.
        "id-4111111111111111a",
        "x123-45-6789",
        "123-45-67890",
        "1123-45-6789",
        "000-12-3456",
        "666-12-3456",
        "123-00-4567",
        "123-45-0000",
        "12-212-555-0123",
        "2125550123",
        "2026-11-30 12:00:00",
        "192.168.100.1",
        "user@localhost",
        "@example.com",
        "a @ b.c",
        "550e8400-e29b-41d4-a716-446655440000",
        // Fractions, versions and lists are no cards, whatever their digits add up to.
        "0.4111111111111111",
        "{\"x\":-12.4111111111111111}",
        "v1.4111111111111111",
        "4111\n1111\n1111\n1112",
        "4111.1111.1111.1112",
        "4111    1111,1111;1111",
        "41.11.11.11.11.11.11.11",
        "41\n11\n11\n11\n11\n11\n11\n11",
        "٤١١١١١١١١١١١١١١٢",
        "[\"a\",\"@example.com\"]",
        "{\"@example.com\":1}",
        "\"@example.com\"",
        "https://example.com/@ann.example",
        "ann@example",
        "ann@example.c",
        "ann@example..com",
        "ann@1.2.3",
        "ann@example.c0m",
        "212-555-01234",
        // Rows, columns and amounts.
        "2026-11-30 2026-12-01",
        "from 2019-07-28 2026-01-31 on",
        "{\"ts\":1718000000000000,\"at\":1718000000000}",
        "4111\n1111\n1111\n1111\n1111",
        "4111 1111 1111 1111 1111 1111",
        "41111 11111 11111",
        "234 567 8901",
        "1 234 567 8901",
        "234\n567\n8901",
        "range 100-200-3000",
        "100.200.3000",
        "911-555-0123",
        "{\"x\":+0.123}",
        "+0.123456789",
        "+1.23456789",
        "+2.0123456789",
        "+100 000 000 views",
        "+20 000 000",
        "+1 000 000 000",
        "+10485760 bytes",
        "+12345678",
        "+3 4 5 6 7 8 9 1 2 3",
        "4111111111111111.25",
        // Logins, files and units.
        "git@github.com:a/b.git",
        "git clone ann@example.org:~/code/x",
        "getty@tty1.service",
        "cron@daily.timer",
        "icon@2x.png",
        "npm i pkg%40latest",
        "+1234567",
        "+ 1 2 3",
        "1+1=2, 3+4567=4570",
        "C:\\new\\table",
    ];
    for text in table {
        assert_eq!(found(text), Vec::<&str>::new(), "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_to_its_end(text in ".{0,80}|[0-9 .+()@x\\\\u\n-]{0,80}") {
        kinds_in(&text);
    }

    #[test]
    fn a_card_is_found_whatever_its_groups_are_set_apart_with(
        apart in proptest::collection::vec("\u{ad}?([ .-]{1,3}|\n)\u{200b}?", 3),
    ) {
        let [a, b, c] = &apart[..] else { unreachable!("three were asked for") };
        proptest::prop_assert_eq!(found(&format!("4111{a}1111{b}1111{c}1111")), ["card number"]);
        let near_miss = format!("4111{a}1111{b}1111{c}1112");
        proptest::prop_assert!(!found(&near_miss).contains(&"card number"));
    }
}

type Make = Box<dyn Fn(&mut rand::rngs::StdRng) -> String>;

/// How many of so many texts are refused.
fn refused(count: u32, make: impl Fn(&mut rand::rngs::StdRng) -> String) -> (usize, Vec<String>) {
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let texts = (0..count).map(|_| make(&mut random));
    let refused: Vec<_> = texts.filter(|text| !found(text).is_empty()).collect();
    (refused.len(), refused)
}

#[test]
fn timestamps_dates_and_decimals_are_hardly_ever_refused() {
    let date = |random: &mut rand::rngs::StdRng| {
        let (year, month, day) = (
            random.random_range(1970..2100),
            random.random_range(1..13),
            random.random_range(1..29),
        );
        format!("{year}-{month:02}-{day:02}")
    };
    let kinds: [(&str, Make); 7] = [
        (
            "milliseconds",
            Box::new(|random| {
                let at: u64 = random.random_range(0..4_000_000_000_000);
                format!("{{\"ts\":{at},\"n\":1}}")
            }),
        ),
        (
            "microseconds",
            Box::new(|random| {
                let at: u64 = random.random_range(900_000_000_000_000..2_100_000_000_000_000);
                format!("[{at}, {}]", at + 17)
            }),
        ),
        (
            "nanoseconds",
            Box::new(|random| {
                let at: u64 =
                    random.random_range(900_000_000_000_000_000..2_100_000_000_000_000_000);
                at.to_string()
            }),
        ),
        (
            "dates",
            Box::new(move |random| {
                format!(
                    "{} {}\n{}, {}",
                    date(random),
                    date(random),
                    date(random),
                    date(random)
                )
            }),
        ),
        (
            "decimals",
            Box::new(|random| {
                let number: f64 = random.random_range(-9.0..9.0);
                format!("{{\"x\":{number},\"y\":{number:+}}}")
            }),
        ),
        (
            "rows of five digits",
            Box::new(|random| {
                let row: Vec<_> = (0..6)
                    .map(|_| random.random_range(10_000..100_000).to_string())
                    .collect();
                row.join(" ")
            }),
        ),
        (
            "long columns of four digits",
            Box::new(|random| {
                let column: Vec<_> = (0..9)
                    .map(|_| random.random_range(1_000..10_000).to_string())
                    .collect();
                column.join("\n")
            }),
        ),
    ];
    const TEXTS: u32 = 4_000;
    for (kind, make) in kinds {
        let (count, some) = refused(TEXTS, make);
        assert!(
            count * 200 <= TEXTS as usize,
            "{kind}: {count} of {TEXTS}: {:?}",
            some.first()
        );
    }
}

#[test]
fn several_kinds_are_named_together_and_the_content_never() {
    let text = "ann@example.org 123-45-6789 4111111111111111";
    let refusal = PiiDetection.judge(text, &Gate::outside()).unwrap_err();
    let message = refusal.llm_message();
    assert_eq!(
        message,
        "Guardrail violation: PII detected in tool output: social security number, card \
         number, e-mail address"
    );
    let all = format!("{refusal:?} {refusal} {message}");
    for secret in ["ann", "123-45", "4111"] {
        assert!(!all.contains(secret), "{all}");
    }
}
