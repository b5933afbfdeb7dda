//! Made-up models to try things out with.

use std::num::NonZeroU32;

use super::{Catalog, Entries};
use crate::models::cost::Prices;
use crate::models::grade::{Grade, ModelKind};
use crate::models::spec::{InputKind, ModelBound, ModelSpec};

/// The provider of all of them.
const PROVIDER: &str = "scripted";

/// Per model: its name, kind, grade, window, longest answer, and the prices of a million tokens.
type Row = (&'static str, ModelKind, Grade, u32, u32, f64, f64);

const ROWS: [Row; 8] = {
    use Grade::{Large, Medium, Mega, Micro, Small, Xl};
    use ModelKind::{Decision, Embeddings, Llm};
    [
        ("starter-micro", Llm, Micro, 32_768, 8_192, 0.05, 0.2),
        ("starter-small", Llm, Small, 131_072, 16_384, 0.25, 1.25),
        ("starter-medium", Llm, Medium, 200_000, 32_768, 1.0, 5.0),
        ("starter-large", Llm, Large, 200_000, 65_536, 3.0, 15.0),
        ("starter-xl", Llm, Xl, 400_000, 65_536, 10.0, 40.0),
        ("starter-mega", Llm, Mega, 1_000_000, 131_072, 20.0, 100.0),
        ("starter-embeddings", Embeddings, Micro, 8_192, 0, 0.02, 0.0),
        ("starter-decision", Decision, Micro, 16_384, 0, 0.1, 0.0),
    ]
};

/// A quota that a handful of agents do not reach, and a hundred do.
const TOKENS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(4_000_000).unwrap();
const REQUESTS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(4_000).unwrap();

pub(super) fn catalog() -> Catalog {
    let quota = ModelBound::Quota {
        tokens_per_minute: TOKENS_PER_MINUTE,
        requests_per_minute: Some(REQUESTS_PER_MINUTE),
    };
    let mut builder = Catalog::builder();
    for (id, kind, grade, context, output, input_price, output_price) in ROWS {
        let mut spec = ModelSpec::unchecked(id, PROVIDER, quota)
            .kind(kind)
            .grade(grade);
        (spec.context_tokens, spec.max_output_tokens) = (context, output);
        spec.prices = Prices::per_million("USD", input_price, output_price).ok();
        if kind == ModelKind::Llm && grade >= Grade::Medium {
            spec = spec.takes([InputKind::Images, InputKind::Documents]);
        }
        builder = builder.pinned_model(spec);
    }
    // A test holds that there is nothing wrong with it.
    builder.build().unwrap_or_else(|_| Catalog {
        inner: std::sync::Arc::new(Entries::default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_priced_and_preferred_model_of_every_grade_and_kind() {
        let catalog = catalog();
        for grade in Grade::ALL {
            let [spec] = catalog.pins(grade) else {
                panic!("one pin of {grade:?}");
            };
            assert_eq!((spec.grade, spec.kind), (grade, ModelKind::Llm));
        }
        assert_eq!(catalog.embeddings_pins().len(), 1);
        assert_eq!(catalog.decision_pins().len(), 1);
        assert_eq!(catalog.entries().count(), ROWS.len());
        assert!(catalog.entries().all(|spec| spec.prices.is_some()));
    }
}
