//! The payloads: flights as JSON, a web server's log, and bytes that nothing compresses. Two of them from a fixed seed.

use std::io::Read as _;
use std::path::PathBuf;

/// Payloads, and what they are.
pub(crate) struct DataSet {
    pub(crate) name: &'static str,
    pub(crate) payloads: Vec<Vec<u8>>,
}

/// Numbers that look random, the same in every run (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new() -> Self {
        Self(0x0b5a_1700_2013_0001)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The flights: all of a year, if they are at hand, else the sample as often as makes about as many.
pub(crate) fn flights() -> DataSet {
    let (lines, times) = match std::env::var_os("BASALT_TEST_DATA") {
        Some(folder) => {
            let path = PathBuf::from(folder).join("flights.ndjson.gz");
            let file = std::fs::File::open(&path).expect("flights.ndjson.gz in BASALT_TEST_DATA");
            let mut lines = Vec::new();
            flate2::read::MultiGzDecoder::new(file)
                .read_to_end(&mut lines)
                .expect("sound gzip");
            (lines, 1)
        }
        None => (include_bytes!("../../examples/flights.ndjson").to_vec(), 67),
    };
    let one: Vec<Vec<u8>> = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let count = one.len() * times;
    DataSet {
        name: "flights (JSON)",
        payloads: one.into_iter().cycle().take(count).collect(),
    }
}

/// Lines as a web server logs them: some paths and clients far more often than others.
pub(crate) fn access_log() -> DataSet {
    const METHODS: [&str; 4] = ["GET", "GET", "GET", "POST"];
    const STATUS: [u16; 8] = [200, 200, 200, 200, 200, 304, 404, 500];
    const AGENTS: [&str; 4] = [
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36",
        "curl/8.5.0",
        "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    ];
    let mut random = Random::new();
    let index = |random: &mut Random, bound: usize| {
        usize::try_from(random.below(bound as u64)).expect("below the bound")
    };
    let line = |number: u64, random: &mut Random| {
        // The smaller of two: the first of a thousand paths are asked for most.
        let path = random
            .below(1_000)
            .min(random.below(1_000))
            .min(random.below(1_000));
        let client = random.below(5_000).min(random.below(5_000));
        let seconds = number / 50;
        format!(
            "10.{}.{}.{} - - [30/Nov/2026:{:02}:{:02}:{:02} +0000] \"{} /shop/item/{path}?ref={} HTTP/1.1\" {} {} \"-\" \"{}\"",
            client / 4_096,
            client / 64 % 64,
            client % 64,
            seconds / 3_600 % 24,
            seconds / 60 % 60,
            seconds % 60,
            METHODS[index(random, METHODS.len())],
            random.below(1 << 24),
            STATUS[index(random, STATUS.len())],
            200 + random.below(60_000),
            AGENTS[index(random, AGENTS.len())],
        )
        .into_bytes()
    };
    DataSet {
        name: "access log (text)",
        payloads: (0..600_000)
            .map(|number| line(number, &mut random))
            .collect(),
    }
}

/// Payloads of 64 to 2,111 bytes without any pattern.
pub(crate) fn noise() -> DataSet {
    let mut random = Random::new();
    let mut payload = || {
        let bytes = 64 + random.below(2_048);
        (0..bytes.div_ceil(8))
            .flat_map(|_| random.next().to_be_bytes())
            .take(usize::try_from(bytes).expect("small"))
            .collect::<Vec<u8>>()
    };
    DataSet {
        name: "random bytes",
        payloads: (0..100_000).map(|_| payload()).collect(),
    }
}
