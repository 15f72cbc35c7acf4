//! Text tables with aligned columns.

/// Rows of cells; the first `left` columns are left-aligned, the others are right-aligned.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    pub(crate) fn new(header: &[&str], left: usize) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Table { rows: vec![header], left }
    }

    pub(crate) fn add(&mut self, row: impl Into<Vec<String>>) {
        self.rows.push(row.into());
    }

    pub(crate) fn draw(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column < self.left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters_not_bytes() {
        let mut table = Table::new(&["name", "p50"], 1);
        table.add(["größe".into(), "1.00 µs".into()]);
        table.add(["a".into(), "12 ms".into()]);
        assert_eq!(table.draw(), "name       p50\ngröße  1.00 µs\na        12 ms");
    }
}
