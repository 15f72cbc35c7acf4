//! Warnings about files that belong to samples, but are not packed.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spdl_core::Dataset;
use spdl_io::FieldValue;
use spdl_io::datasets::{DatasetKind, OpenedDataset};
use spdl_io::records::StoredField;

use super::arguments::PackArguments;
use crate::datasets::address::is_address;
use crate::datasets::extensions::MediaType;
use crate::ui::format::{count, printable};
use crate::ui::stderr;

/// The number of rows of a list that are searched for paths.
const ROWS: u64 = 20;

/// Prints a warning if a column of a list holds paths whose files are not packed, or if a folder has
/// other files beside its images.
pub(super) fn warn(arguments: &PackArguments, set: &OpenedDataset) {
    let local: Vec<&Path> =
        arguments.sources.iter().map(PathBuf::as_path).filter(|it| !is_address(it)).collect();
    let warning = match set.kind {
        DatasetKind::FileList => {
            let is_packed = |name: &str| {
                let fields = arguments.fields.as_ref();
                fields.is_none_or(|fields| fields.iter().any(|field| field == name))
            };
            let mut columns = columns_of_paths(set, &local);
            columns.retain(|name| is_packed(name));
            of_columns(&columns)
        }
        DatasetKind::ImageFolder => {
            let mut beside = BTreeMap::new();
            local.iter().for_each(|folder| count_beside_images(folder, &mut beside));
            of_files(&beside)
        }
        _ => None,
    };
    if let Some(warning) = warning {
        stderr::note(&printable(&format!("spdl: warning: {warning}")));
    }
}

fn of_columns(columns: &[Arc<str>]) -> Option<String> {
    let names = columns.join(",");
    let what = match columns {
        [] => return None,
        [_] => format!("the column {names} holds paths"),
        _ => format!("the columns {names} hold paths"),
    };
    Some(format!(
        "{what} of existing files; the paths are packed as text, but not the files; to pack the \
         files, add --file-fields {names}"
    ))
}

fn of_files(beside: &BTreeMap<String, u64>) -> Option<String> {
    let (first, total) = (beside.keys().next()?, beside.values().sum());
    let kinds: Vec<String> =
        beside.iter().map(|(ending, files)| format!("{} .{ending}", count(*files))).collect();
    Some(format!(
        "{} beside images are left out ({}); to pack them, write a list with a column for each \
         file of a sample, and name these columns: a first line \"path,{first}\", and spdl pack \
         LIST.csv DST --file-fields {first}",
        match total {
            1 => "1 file".to_owned(),
            total => format!("{} files", count(total)),
        },
        kinds.join(", ")
    ))
}

/// The columns whose texts in the first rows all name existing files.
fn columns_of_paths(set: &OpenedDataset, lists: &[&Path]) -> Vec<Arc<str>> {
    if !set.is_local {
        return Vec::new();
    }
    // For a folder with lists, the folder; for a list, its folder.
    let folders: Vec<&Path> = lists
        .iter()
        .filter_map(|list| if list.is_dir() { Some(*list) } else { list.parent() })
        .collect();
    let is_file = |text: &str| folders.iter().any(|folder| folder.join(text).is_file());
    let mut columns: Vec<(Arc<str>, bool)> = Vec::new();
    for number in 0..set.samples.len().min(ROWS) {
        let Ok(record) = set.samples.item(number) else { continue };
        for (name, field) in &record.fields {
            let StoredField::Known(FieldValue::Text(text)) = field else { continue };
            let column = columns.iter_mut().find(|(column, _)| column == name);
            match column {
                Some((_, are_files)) => *are_files = *are_files && is_file(text),
                None => columns.push((Arc::clone(name), is_file(text))),
            }
        }
    }
    columns.into_iter().filter_map(|(name, are_files)| are_files.then_some(name)).collect()
}

/// Counts the files of a folder and its subfolders that have the name of an image up to the first
/// dot, by extension. Unreadable folders are skipped.
fn count_beside_images(folder: &Path, beside: &mut BTreeMap<String, u64>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let (mut images, mut others) = (HashSet::<OsString>::new(), Vec::new());
    for entry in entries.filter_map(Result::ok) {
        let (name, path) = (entry.file_name(), entry.path());
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                count_beside_images(&path, beside);
                continue;
            }
            Ok(_) => {}
            Err(_) => continue,
        }
        match MediaType::of_name(name.as_encoded_bytes()) {
            Some(MediaType::Image) => drop(images.insert(stem(&path))),
            _ => others.push(path),
        }
    }
    for other in others.iter().filter(|other| images.contains(&stem(other))) {
        let ending = other.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        *beside.entry(ending).or_default() += 1;
    }
}

/// The name of a file up to its first dot.
fn stem(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().into()
}
