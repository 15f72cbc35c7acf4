//! What a function is declared to take, for the comparison of our declarations with those of `cudarc`.

/// A pointer to a function.
pub(super) trait Arguments {
    /// The sizes of its arguments, in bytes.
    fn sizes(self) -> Vec<usize>;
}

macro_rules! of_so_many {
    ($($argument:ident)*) => {
        impl<$($argument,)* R> Arguments for unsafe fn($($argument),*) -> R {
            fn sizes(self) -> Vec<usize> {
                vec![$(size_of::<$argument>()),*]
            }
        }
    };
}

of_so_many!();
of_so_many!(A);
of_so_many!(A B);
of_so_many!(A B C);
of_so_many!(A B C D);
of_so_many!(A B C D E);
of_so_many!(A B C D E F);
of_so_many!(A B C D E F G H I J K);

/// Whatever type stands there.
macro_rules! any {
    ($argument:ty) => {
        _
    };
}
pub(super) use any;
