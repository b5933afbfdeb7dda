//! Catalogs: read whole, or refused with everything that is wrong with them.

use std::num::NonZeroU32;

use nucleo_runtime::models::{
    Catalog, CatalogError, Depth, Grade, ModelBound, ModelKind, ModelSpec, ModelStatus, Thinking,
    Usage,
};

fn faults(result: Result<Catalog, CatalogError>) -> Vec<String> {
    let error = result.unwrap_err();
    let told: Vec<_> = error.faults().iter().map(ToString::to_string).collect();
    for fault in &told {
        assert!(error.to_string().contains(fault), "{fault}: {error}");
    }
    told
}

/// Each part of `expected` is in the fault at its place, and there are no others.
#[track_caller]
fn assert_faults(told: &[String], expected: &[(&str, &str)]) {
    for (fault, (entry, part)) in told.iter().zip(expected) {
        assert!(fault.starts_with(entry), "{entry}: {told:#?}");
        assert!(fault.contains(part), "{part}: {told:#?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
}

const GOOD: &str = r#"
[[model]]
id = "acme-small"
provider = "acme"
wire_id = "acme-small-2"
grade = "small"
context_tokens = 200_000
max_output_tokens = 32_768
vision = true
tpm = 400_000
rpm = 400
currency = "USD"
input_price = 2
output_price = 10.0
cache_write_multiplier = 1.25
cache_read_multiplier = 0.1
thinking = "effort"
thinking_budgets = { quick = 2_048 }

[[model]]
id = "old"
provider = "acme"
grade = "medium"
context_tokens = 1_000
max_output_tokens = 500
max_concurrent = 3
status = "deprecated"

[[model]]
id = "vectors"
provider = "own"
kind = "embeddings"
context_tokens = 8_192
max_concurrent = 2

[pins]
micro = ["acme-small"]
embeddings = ["vectors"]
"#;

#[test]
fn a_file_says_everything_that_code_can() {
    let catalog = Catalog::from_toml(GOOD).unwrap();
    let small = catalog.get("acme-small").unwrap();
    assert_eq!((small.grade, small.kind), (Grade::Small, ModelKind::Llm));
    assert_eq!(
        (&*small.wire_id, &*small.identity),
        ("acme-small-2", "acme-small")
    );
    assert!(small.vision && !small.documents && !small.shares_data);
    assert_eq!(small.thinking, Thinking::Effort);
    assert_eq!(small.thinking_tokens(Depth::Quick), 2_048);
    assert_eq!(small.thinking_tokens(Depth::Standard), 4_096);
    let cost = small
        .prices
        .unwrap()
        .cost(&Usage::new(10_000, 1_000).cached(2_000, 3_000));
    assert_eq!(cost, "0.0256 USD".parse().unwrap());
    let quota = ModelBound::Quota {
        tokens_per_minute: NonZeroU32::new(400_000).unwrap(),
        requests_per_minute: NonZeroU32::new(400),
    };
    assert_eq!(small.bound, quota);
    let old = catalog.get("old").unwrap();
    assert_eq!(old.status, ModelStatus::Deprecated);
    assert_eq!(
        old.bound,
        ModelBound::Concurrency(NonZeroU32::new(3).unwrap())
    );
    assert_eq!(old.prices, None);
    assert_eq!(catalog.get("vectors").unwrap().kind, ModelKind::Embeddings);
    assert_eq!(catalog.pins(Grade::Micro), std::slice::from_ref(small));
    assert_eq!(catalog.embeddings_pins().len(), 1);
    assert_eq!(catalog.entries().count(), 3);
}

#[test]
fn json_has_the_shape_of_the_toml() {
    let text = r#"{
        "model": [{"id": "m", "provider": "p", "grade": "xl", "context_tokens": 10,
                   "max_output_tokens": 5, "tpm": 1000}],
        "pins": {"large": ["m"]}
    }"#;
    let catalog = Catalog::from_json(text).unwrap();
    assert_eq!(catalog.pins(Grade::Large)[0].grade, Grade::Xl);
}

#[test]
fn a_catalog_with_several_faults_names_them_all_each_with_its_entry() {
    let text = r#"
colour = "blue"

[[model]]
id = "a"
provider = "acme"
grade = "small"
context_tokens = 1_000
max_output_tokens = 500
tpm = 1_000
max_concurrent = 2
input_price = 1.0
speed = "fast"

[[model]]
id = "b"
provider = ""
grade = "huge"
context_tokens = 100
max_output_tokens = 500
currency = "usd"
input_price = -1.0
output_price = -2.0
cache_read_multiplier = -0.5

[[model]]
id = "a"
provider = "acme"
kind = "embeddings"
context_tokens = "many"
rpm = -5
status = "retired"

[[model]]
provider = "acme"

[[model]]
id = "closed"
provider = "acme"
grade = "mega"
context_tokens = 1_000
max_output_tokens = 500
max_concurrent = 1
status = "disabled"
thinking_budgets = { deep = 5, quick = 600 }

[pins]
medium = ["a", "missing", "closed"]
small = ["a", "a"]
embeddings = ["a"]
huge = ["a"]
decision = "a"
"#;
    let told = faults(Catalog::from_toml(text));
    for (entry, part) in [
        ("the file", "unknown key `colour`"),
        ("model 'a'", "has both a quota"),
        ("model 'a'", "has a price and no `currency`"),
        ("model 'a'", "unknown key `speed`"),
        ("model 'b'", "provider must not be empty"),
        ("model 'b'", "`grade` is 'huge'"),
        ("model 'b'", "context_tokens is 100"),
        (
            "model 'b'",
            "`currency` is usd and must be three capital letters",
        ),
        ("model 'b'", "`input_price` is -1"),
        ("model 'b'", "`output_price` is -2"),
        ("model 'b'", "`cache_read_multiplier` is -0.5"),
        ("model 'b'", "has no bound"),
        ("model 'a' (entry 3)", "`context_tokens` is \"many\""),
        ("model 'a' (entry 3)", "`rpm` is -5"),
        ("model 'a' (entry 3)", "`rpm` needs `tpm`"),
        ("model 'a' (entry 3)", "`status` is 'retired'"),
        ("model 'a' (entry 3)", "the id is taken"),
        ("model 'a'", "has no `output_price`"),
        ("model 4", "`id` is missing"),
        ("model 4", "has no bound"),
        ("model 4", "`grade` is missing"),
        ("model 4", "`context_tokens` is missing"),
        ("model 4", "`max_output_tokens` is missing"),
        ("model 'closed'", "`thinking_budgets.deep`"),
        ("model 'closed'", "the thinking budget at Quick is 600"),
        ("pins.medium", "'a' is of the lower grade Small"),
        ("pins.medium", "'missing' is no entry"),
        ("pins.medium", "'closed' is Disabled"),
        ("pins.small", "'a' is pinned twice"),
        ("pins.embeddings", "'a' is of kind Llm"),
        ("pins.huge", "unknown key `huge`"),
        ("pins.decision", "must be a list of ids"),
    ] {
        let found = told
            .iter()
            .any(|fault| fault.starts_with(entry) && fault.contains(part));
        assert!(found, "{entry}: {part}\n{told:#?}");
    }
    assert_eq!(told.len(), 32, "{told:#?}");
}

#[test]
fn a_single_fault_is_told_alone() {
    let with = |line: &str| GOOD.replacen("grade = \"small\"", line, 1);
    for (line, entry, part) in [
        ("", "model 'acme-small'", "`grade` is missing"),
        ("grade = 3", "model 'acme-small'", "`grade` must be a text"),
        (
            "grade = \"small\"\nvison = true",
            "model 'acme-small'",
            "unknown key `vison`",
        ),
    ] {
        assert_faults(&faults(Catalog::from_toml(&with(line))), &[(entry, part)]);
    }
    for (text, part) in [
        ("[pins]", "has no `model`"),
        ("model = 3", "must be a list of tables"),
        ("model = [1]", "entry 1 must be a table"),
        ("model = []\npins = 3", "must be a table of lists"),
    ] {
        assert_faults(&faults(Catalog::from_toml(text)), &[("the file", part)]);
    }
    assert_eq!(faults(Catalog::from_toml("model = [")).len(), 1);
    assert_eq!(faults(Catalog::from_json("[]")).len(), 1);
    let none = faults(Catalog::read("/no/such/catalog.toml"));
    assert_faults(&none, &[("the file", "/no/such/catalog.toml")]);
}

#[test]
fn a_file_is_read_by_its_ending() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    assert!(Catalog::read(write("models.toml", GOOD)).is_ok());
    assert!(Catalog::read(write("models.json", r#"{"model": []}"#)).is_ok());
    assert!(Catalog::read(write("wrong.json", GOOD)).is_err());
}

#[test]
fn code_is_held_to_the_same_rules() {
    let bound = ModelBound::Concurrency(NonZeroU32::MIN);
    let spec = |id: &str| ModelSpec::new(id, "p", bound).unwrap();
    let mut broken = spec("broken");
    broken.max_output_tokens = 0;
    let result = Catalog::builder()
        .model(spec("twice"))
        .model(spec("twice"))
        .model(broken)
        .pin(Grade::Large, ["twice"])
        .pin_decision(["nowhere"])
        .build();
    assert_faults(
        &faults(result),
        &[
            ("model 'twice'", "taken"),
            ("model 'broken'", "max_output_tokens"),
            ("pins.large", "lower grade"),
            ("pins.decision", "no entry"),
        ],
    );
    assert!(ModelSpec::new(" ", "p", bound).is_err());
    assert!(ModelSpec::new("m", "", bound).is_err());
}

#[test]
fn the_sample_is_a_catalog() {
    let sample = Catalog::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/catalog.toml"
    ));
    let catalog = sample.unwrap();
    assert!(
        Grade::ALL
            .into_iter()
            .any(|grade| !catalog.pins(grade).is_empty())
    );
}

#[test]
fn one_reading_tells_every_fault_of_every_entry() {
    let told = |text: &str| Catalog::from_toml(text).unwrap_err().to_string();
    let text = told(
        "[[model]]\nprovider = ''\ngrade = 'foo'\ntpm = 1\nmax_concurrent = 1\ncurrency = 'usd'\n\
         input_price = -1\nzzz = 1",
    );
    for part in [
        "model 1: `id` is missing",
        "provider must not be empty",
        "`grade` is 'foo'",
        "both a quota",
        "three capital",
        "`input_price` is -1",
        "no `output_price`",
        "`context_tokens` is missing",
        "unknown key `zzz`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let entry = "[[model]]\nid = 'a'\nprovider = 'p'\ngrade = 'small'\ncontext_tokens = 100000\n\
                 max_output_tokens = 10000\ntpm = 100000\n";
    let with = |rest: &str| told(&format!("{entry}{rest}"));
    let text = with("input_price = -1.0\noutput_price = nan");
    assert!(text.contains("no `currency`"), "{text}");
    assert!(
        text.contains("`input_price` is -1") && text.contains("`output_price` must be a number")
    );
    assert!(with("currency = 'USD'\ninput_price = 1").contains("no `output_price`"));
    assert!(with("currency = 'USD'\noutput_price = 1").contains("no `input_price`"));
    let text = with(&format!("{entry}wire_id = ' a'\n"));
    assert!(
        text.contains("model 'a' (entry 2): the id is taken"),
        "{text}"
    );
    assert!(
        text.contains("(entry 2): wire_id must have no blank"),
        "{text}"
    );
    let text = told(&entry.replace("'a'", "\"a\\u0007\""));
    assert!(text.contains("no control character"), "{text}");
    let text = told(&entry.replace(
        "100000\nmax_output_tokens = 10000",
        "0\nmax_output_tokens = 0",
    ));
    assert!(
        text.contains("max_output_tokens is 0") && text.contains("context_tokens is 0"),
        "{text}"
    );
}

#[test]
fn a_key_that_stands_twice_in_json_is_a_fault_and_the_file_is_named() {
    let entry = r#""id": "a", "provider": "p", "grade": "small", "context_tokens": 9,
        "max_output_tokens": 3, "tpm": 10"#;
    let doubled = |text: String, key: &str| {
        let said = Catalog::from_json(&text).unwrap_err().to_string();
        assert!(said.contains(&format!("duplicate key `{key}`")), "{said}");
    };
    assert!(Catalog::from_json(&format!(r#"{{"model": [{{{entry}}}]}}"#)).is_ok());
    doubled(format!(r#"{{"model": [{{{entry}, "tpm": 9}}]}}"#), "tpm");
    doubled(
        format!(r#"{{"model": [], "model": [{{{entry}}}]}}"#),
        "model",
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("models.toml");
    let named = |path: &std::path::Path| {
        let said = Catalog::read(path).unwrap_err().to_string();
        assert!(said.contains("models.toml"), "{said}");
    };
    named(&path);
    std::fs::write(&path, "zzz = 1").unwrap();
    named(&path);
}
