//! COL-24 and the columns themselves, for thousands of payloads that nobody thought of.

use proptest::collection::vec;
use proptest::prelude::*;

use super::try_shred;
use crate::tests::json::Pen;
use crate::tests::support::{Random, seeds};

#[test]
fn fuzzed_payloads_are_rendered_byte_for_byte() {
    let (mut rows, mut shredded) = (0, 0);
    for seed in seeds(512) {
        let mut random = Random::new("fuzzed_payloads", seed);
        let pen = Pen::new(&mut random);
        let payloads: Vec<_> = (0..200).map(|_| pen.payload(&mut random)).collect();
        let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
        // The last ones are not in the sample.
        if let Some(done) = try_shred(&payloads[..100], &payloads) {
            shredded += done.shredded().iter().filter(|yes| **yes).count();
        }
        rows += payloads.len();
    }
    assert!(
        shredded * 3 > rows,
        "{shredded} of {rows} rows were shredded"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Not JSON, but of its letters: nothing is taken for what it is not, and nothing panics.
    #[test]
    fn letters_of_json_in_any_order_come_back(
        payloads in vec(r#"\{("a"|"b"|"\\\\u00e9"|[\]\[{}:,"\\\\ 0-9.eEé-]|null|true|:1,|:"x"){0,12}\}?"#, 1..20),
    ) {
        let sample: [&[u8]; 4] = [br#"{"a":1,"b":"x"}"#, br#"{"a":2}"#, br#"{"b":null}"#, br#"{"a":[1],"b":{"a":1}}"#];
        let payloads: Vec<_> = payloads.iter().map(String::as_bytes).collect();
        prop_assert!(try_shred(&sample, &payloads).is_some());
        let mut own = payloads.clone();
        own.extend(sample);
        try_shred(&own, &payloads);
    }
}
