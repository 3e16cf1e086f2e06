//! Some rows of a file: a bit for each row.

/// Rows, by their number in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RowSet {
    /// Up to the last one that is in it.
    words: Vec<u64>,
    len: u64,
}

impl RowSet {
    /// Adds a row.
    pub(crate) fn insert(&mut self, row: usize) {
        let (word, bit) = (row / 64, 1 << (row % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let word = &mut self.words[word];
        self.len += u64::from(*word & bit == 0);
        *word |= bit;
    }

    pub(crate) fn contains(&self, row: usize) -> bool {
        let word = self.words.get(row / 64);
        word.is_some_and(|word| word & (1 << (row % 64)) != 0)
    }

    /// How many.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_it_once() {
        let mut rows = RowSet::default();
        assert!(rows.is_empty() && !rows.contains(0));
        for row in [0, 63, 64, 64, 1000] {
            rows.insert(row);
        }
        assert_eq!(rows.len(), 4);
        let all: Vec<_> = (0..2000).filter(|row| rows.contains(*row)).collect();
        assert_eq!(all, [0, 63, 64, 1000]);
    }
}
