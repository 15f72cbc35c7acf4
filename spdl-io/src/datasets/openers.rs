//! The openers that the data sets of sharded files share.

/// Implements `open`, `open_with`, `open_files` and `fetch` for a data set.
///
/// The data set provides `fetch_files`, `open_keys(Vec<Key>, &Options)` for local files, and its options
/// provide `patterns()`. `$folder` describes the files of a folder.
macro_rules! impl_openers {
    ($dataset:ident, $options:ident, $folder:literal $(, #[$local:meta])?) => {
        impl $dataset {
            /// Opens the local files that `pattern` matches, with default options.
            ///
            /// - Braces are expanded by [`expand_braces`](crate::datasets::expand_braces).
            /// - In the last part of the path, `*` matches any characters, and `?` one. Hidden files and
            ///   index files are not matched. The files are sorted by their bytes.
            #[doc = concat!("- A folder stands for its ", $folder, ".")]
            ///
            /// The call blocks. Asynchronous code calls [`fetch`](Self::fetch).
            ///
            /// # Errors
            /// - The errors of [`fetch_files`](Self::fetch_files) and of
            ///   [`expand_braces`](crate::datasets::expand_braces).
            /// - `NotFound` if no file matches.
            /// - `Unsupported` for a `pipe:` command.
            $(#[$local])?
            pub fn open(pattern: &str) -> Result<Self> {
                Self::open_with(pattern, &$options::default())
            }

            /// Opens the local files that `pattern` matches.
            ///
            /// # Errors
            /// The errors of [`open`](Self::open).
            $(#[$local])?
            pub fn open_with(pattern: &str, options: &$options) -> Result<Self> {
                let keys = $crate::datasets::patterns::local_keys(pattern, &options.patterns())?;
                Self::open_keys(keys, options)
            }

            /// Opens local files, in this order.
            ///
            /// # Errors
            /// The errors of [`open`](Self::open); `InvalidArgument` for an empty list.
            $(#[$local])?
            pub fn open_files<P: AsRef<Path>>(
                paths: impl IntoIterator<Item = P>,
                options: &$options,
            ) -> Result<Self> {
                Self::open_keys(paths.into_iter().map(Key::from_path).collect(), options)
            }

            /// Opens the files of a store that `pattern` matches: see [`open`](Self::open).
            ///
            /// A folder must end with a slash. Folders, `*` and `?` require a store that lists.
            ///
            /// # Errors
            /// The errors of [`fetch_files`](Self::fetch_files); `NotFound` if no file matches.
            pub async fn fetch(
                fetcher: &Arc<dyn Fetcher>,
                pattern: &str,
                options: &$options,
            ) -> Result<Self> {
                let patterns = options.patterns();
                let keys =
                    $crate::datasets::patterns::stored_keys(&**fetcher, pattern, &patterns).await?;
                Self::fetch_files(fetcher, keys, options).await
            }
        }
    };
}

pub(super) use impl_openers;
