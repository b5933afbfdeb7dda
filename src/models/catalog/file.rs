//! A catalog as a file. TOML and JSON are read into one tree, and the tree by hand: a derived reader
//! stops at the first fault, and whoever edits a catalog wants to see all of them.

use std::num::NonZeroU32;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Catalog, CatalogBuilder, CatalogError, CatalogFault, Seats, strict_json};
use crate::error::ErrorKind;
use crate::models::cost::Prices;
use crate::models::grade::{Depth, Grade, ModelKind};
use crate::models::spec::{ModelBound, ModelSpec, ModelStatus, Thinking};

pub(super) fn from_toml(text: &str) -> Result<Catalog, CatalogError> {
    match toml::from_str(text) {
        Ok(tree) => from_tree(tree),
        Err(error) => Err(unreadable(error.to_string().trim())),
    }
}

pub(super) fn from_json(text: &str) -> Result<Catalog, CatalogError> {
    match strict_json::read(text) {
        Ok(tree) => from_tree(tree),
        Err(error) => Err(unreadable(&error.to_string())),
    }
}

pub(super) fn read(path: &Path) -> Result<Catalog, CatalogError> {
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    let text = std::fs::read_to_string(path)
        .map_err(|error| unreadable(&format!("{}: {error}", path.display())))?;
    let read = if is_json {
        from_json(&text)
    } else {
        from_toml(&text)
    };
    read.map_err(|error| error.in_file(path.display().to_string()))
}

fn of_file(problem: impl Into<String>) -> CatalogFault {
    CatalogFault {
        entry: "the file".to_owned(),
        problem: problem.into(),
    }
}

fn unreadable(problem: &str) -> CatalogError {
    CatalogError {
        file: None,
        faults: vec![of_file(problem)],
    }
}

fn from_tree(tree: Value) -> Result<Catalog, CatalogError> {
    let Value::Object(mut top) = tree else {
        return Err(unreadable("must be a table with `model` and `pins`"));
    };
    let mut builder = Catalog::builder();
    match top.remove("model") {
        None => builder.fault(of_file("has no `model`")),
        Some(Value::Array(entries)) => {
            for (index, entry) in entries.into_iter().enumerate() {
                builder = with_entry(builder, index, entry);
            }
        }
        Some(_) => builder.fault(of_file("`model` must be a list of tables, as `[[model]]`")),
    }
    match top.remove("pins") {
        None => {}
        Some(Value::Object(pins)) => {
            for (name, ids) in pins {
                builder = with_pins(builder, &name, ids);
            }
        }
        Some(_) => builder.fault(of_file("`pins` must be a table of lists")),
    }
    for key in top.keys() {
        builder.fault(of_file(format!("unknown key `{key}`")));
    }
    builder.build()
}

fn with_pins(mut builder: CatalogBuilder, name: &str, ids: Value) -> CatalogBuilder {
    let entry = format!("pins.{name}");
    let seats = match name {
        "embeddings" => Some(Seats::Embeddings),
        "decision" => Some(Seats::Decision),
        _ => grade(name).map(Seats::Grade),
    };
    let Some(seats) = seats else {
        builder.fault(CatalogFault {
            entry,
            problem: format!("unknown key `{name}`: pins are for a grade, embeddings or decision"),
        });
        return builder;
    };
    let texts = match ids {
        Value::Array(ids) => ids
            .into_iter()
            .map(|id| id.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>(),
        _ => None,
    };
    match texts {
        Some(ids) => builder.pin_for(seats, ids),
        None => {
            builder.fault(CatalogFault {
                entry,
                problem: "must be a list of ids".to_owned(),
            });
            builder
        }
    }
}

fn with_entry(mut builder: CatalogBuilder, index: usize, entry: Value) -> CatalogBuilder {
    let Value::Object(fields) = entry else {
        builder.fault(of_file(format!("entry {} must be a table", index + 1)));
        return builder;
    };
    let mut fields = Fields {
        fields,
        problems: Vec::new(),
    };
    let has_id = fields.fields.contains_key("id");
    let id = fields.text("id");
    // Also without an id it is read to the end, and all of its faults are told.
    let spec = fields.spec(id.as_deref().unwrap_or("?"));
    fields.unknown();
    let name = match &id {
        // Of two with one id the place tells which is meant.
        Some(id) if builder.entries.iter().any(|other| other.id == *id) => {
            format!("model '{id}' (entry {})", index + 1)
        }
        Some(id) => format!("model '{id}'"),
        None => format!("model {}", index + 1),
    };
    if !has_id {
        fields.problem("`id` is missing");
    }
    if id.is_none() {
        fields.problems.extend(spec.faults());
    }
    for problem in fields.problems {
        builder.fault(CatalogFault {
            entry: name.clone(),
            problem,
        });
    }
    match id {
        Some(_) => builder.model(spec),
        None => builder,
    }
}

fn grade(name: &str) -> Option<Grade> {
    Grade::ALL
        .into_iter()
        .find(|grade| format!("{grade:?}").to_lowercase() == name)
}

const GRADES: &str = "micro, small, medium, large, xl or mega";

const DEPTHS: [(&str, Depth); 5] = [
    ("immediate", Depth::Immediate),
    ("quick", Depth::Quick),
    ("standard", Depth::Standard),
    ("thorough", Depth::Thorough),
    ("ultra_thorough", Depth::UltraThorough),
];

/// What is left of an entry, and what was wrong with what has been read.
struct Fields {
    fields: Map<String, Value>,
    problems: Vec<String>,
}

impl Fields {
    fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.fields.remove(key)? {
            Value::String(text) => Some(text),
            _ => {
                self.problem(format!("`{key}` must be a text"));
                None
            }
        }
    }

    fn flag(&mut self, key: &str) -> bool {
        match self.fields.remove(key) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(_) => {
                self.problem(format!("`{key}` must be true or false"));
                false
            }
        }
    }

    fn number(&mut self, key: &str) -> Option<f64> {
        let number = self.fields.remove(key)?.as_f64();
        if number.is_none() {
            self.problem(format!("`{key}` must be a number"));
        }
        number
    }

    fn whole(&mut self, key: &str) -> Option<u32> {
        let value = self.fields.remove(key)?;
        let whole = whole(&value);
        if whole.is_none() {
            self.problem(format!(
                "`{key}` is {value} and must be a whole number from 0 to {}",
                u32::MAX
            ));
        }
        whole
    }

    fn positive(&mut self, key: &str) -> Option<NonZeroU32> {
        let whole = self.whole(key)?;
        let positive = NonZeroU32::new(whole);
        if positive.is_none() {
            self.problem(format!("`{key}` must be positive"));
        }
        positive
    }

    fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.problem(format!(
                "`{key}` is '{text}' and must be one of {}",
                known.join(", ")
            ));
        }
        found.map(|(_, value)| *value)
    }

    fn spec(&mut self, id: &str) -> ModelSpec {
        let has_provider = self.fields.contains_key("provider");
        let provider = self.text("provider").unwrap_or_else(|| {
            if !has_provider {
                self.problem("`provider` is missing");
            }
            "?".to_owned()
        });
        let bound = self.bound();
        let mut spec = ModelSpec::unchecked(id, &provider, bound);
        if let Some(identity) = self.text("identity") {
            spec.identity = identity;
        }
        if let Some(wire_id) = self.text("wire_id") {
            spec.wire_id = wire_id;
        }
        let kinds = [
            ("llm", ModelKind::Llm),
            ("embeddings", ModelKind::Embeddings),
            ("decision", ModelKind::Decision),
        ];
        spec.kind = self.word("kind", &kinds).unwrap_or_default();
        self.grade(&mut spec);
        self.limits(&mut spec);
        spec.vision = self.flag("vision");
        spec.documents = self.flag("documents");
        spec.shares_data = self.flag("shares_data");
        spec.prices = self.prices(spec.kind);
        let modes = [
            ("none", Thinking::None),
            ("budget", Thinking::Budget),
            ("effort", Thinking::Effort),
        ];
        spec.thinking = self.word("thinking", &modes).unwrap_or_default();
        self.thinking_budgets(&mut spec);
        let statuses = [
            ("open", ModelStatus::Open),
            ("disabled", ModelStatus::Disabled),
            ("deprecated", ModelStatus::Deprecated),
            ("unlisted", ModelStatus::Unlisted),
            ("unreachable", ModelStatus::Unreachable),
        ];
        spec.status = self.word("status", &statuses).unwrap_or_default();
        spec
    }

    fn grade(&mut self, spec: &mut ModelSpec) {
        let has_grade = self.fields.contains_key("grade");
        match self.text("grade") {
            Some(name) => match grade(&name) {
                Some(grade) => spec.grade = grade,
                None => self.problem(format!("`grade` is '{name}' and must be {GRADES}")),
            },
            None if !has_grade && spec.kind == ModelKind::Llm => {
                self.problem(format!("`grade` is missing: {GRADES}"));
            }
            None => {}
        }
    }

    fn limits(&mut self, spec: &mut ModelSpec) {
        let before = self.problems.len();
        let missing = |fields: &Map<String, Value>, key: &str| !fields.contains_key(key);
        if missing(&self.fields, "context_tokens") {
            self.problem("`context_tokens` is missing");
        }
        let llm = spec.kind == ModelKind::Llm;
        if llm && missing(&self.fields, "max_output_tokens") {
            self.problem("`max_output_tokens` is missing");
        }
        let context = self.whole("context_tokens");
        let output = self.whole("max_output_tokens");
        if self.problems.len() == before {
            spec.context_tokens = context.unwrap_or(spec.context_tokens);
            spec.max_output_tokens = output.unwrap_or(0);
        }
    }

    /// What limits the entry: exactly one kind of bound.
    fn bound(&mut self) -> ModelBound {
        let given = |key| self.fields.contains_key(key);
        let (tpm, rpm, at_once) = (given("tpm"), given("rpm"), given("max_concurrent"));
        let tokens = self.positive("tpm");
        let requests = self.positive("rpm");
        let calls = self.positive("max_concurrent");
        match (tpm || rpm, at_once) {
            (true, true) => self.problem(
                "has both a quota (`tpm`, `rpm`) and `max_concurrent`: one of them bounds a model",
            ),
            (false, false) => {
                self.problem("has no bound: give it `tpm` (and `rpm`) or `max_concurrent`");
            }
            (true, false) if !tpm => self.problem("`rpm` needs `tpm` beside it"),
            _ => {}
        }
        match (tokens, calls) {
            (Some(tokens_per_minute), None) => ModelBound::Quota {
                tokens_per_minute,
                requests_per_minute: requests,
            },
            // Any will do where neither was readable: the fault has been told.
            (_, calls) => ModelBound::Concurrency(calls.unwrap_or(NonZeroU32::MIN)),
        }
    }

    fn prices(&mut self, kind: ModelKind) -> Option<Prices> {
        const KEYS: [&str; 4] = [
            "input_price",
            "output_price",
            "cache_write_multiplier",
            "cache_read_multiplier",
        ];
        let priced = KEYS.iter().any(|key| self.fields.contains_key(*key));
        let has_input = self.fields.contains_key("input_price");
        let has_output = self.fields.contains_key("output_price");
        let has_currency = self.fields.contains_key("currency");
        let [input, output, write, read] = KEYS.map(|key| self.number(key));
        let currency = self.text("currency");
        match (priced, has_currency) {
            (false, false) => return None,
            (true, false) => self.problem("has a price and no `currency`"),
            (false, true) => self.problem("has a `currency` and no price"),
            (true, true) => {}
        }
        if priced && !has_input {
            self.problem("has no `input_price`");
        }
        if priced && !has_output && kind == ModelKind::Llm {
            self.problem("has no `output_price`, which an llm needs: 0 where it is free");
        }
        if has_currency && currency.is_none() {
            return None;
        }
        let figures = [
            input.unwrap_or(0.0),
            output.unwrap_or(0.0),
            write.unwrap_or(1.0),
            read.unwrap_or(1.0),
        ];
        // Without a currency the figures are looked at all the same.
        match Prices::checked(currency.as_deref().unwrap_or("USD"), figures) {
            Ok(prices) => Some(prices),
            Err(faults) => {
                self.problems.extend(faults.iter().map(rule));
                None
            }
        }
    }

    fn thinking_budgets(&mut self, spec: &mut ModelSpec) {
        let Some(value) = self.fields.remove("thinking_budgets") else {
            return;
        };
        let Value::Object(budgets) = value else {
            self.problem("`thinking_budgets` must be a table of depths");
            return;
        };
        for (name, tokens) in budgets {
            let depth = DEPTHS.iter().find(|(word, _)| *word == name);
            match (depth, whole(&tokens)) {
                (Some((_, depth)), Some(tokens)) => {
                    spec.thinking_budgets.insert(*depth, tokens);
                }
                (None, _) => self.problem(format!("unknown key `thinking_budgets.{name}`")),
                (_, None) => self.problem(format!(
                    "`thinking_budgets.{name}` must be a whole number of tokens"
                )),
            }
        }
    }

    fn unknown(&mut self) {
        let keys: Vec<_> = self.fields.keys().cloned().collect();
        for key in keys {
            self.problem(format!("unknown key `{key}`"));
        }
    }
}

fn whole(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|whole| u32::try_from(whole).ok())
}

/// What a constructor refused, as a fault of the entry.
fn rule(error: &crate::error::JobError) -> String {
    match error.kind() {
        ErrorKind::InvalidInput {
            parameter,
            value,
            rule,
        } => format!("`{parameter}` is {value} and {rule}"),
        _ => error.to_string(),
    }
}
