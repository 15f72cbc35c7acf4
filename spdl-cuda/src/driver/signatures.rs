//! Argument sizes of function pointers, to compare the declarations of this crate with `cudarc`.

/// A function pointer.
pub(super) trait Signature {
    /// The sizes of its arguments, in bytes.
    fn sizes(self) -> Vec<usize>;
}

macro_rules! impl_signature {
    ($($argument:ident)*) => {
        impl<$($argument,)* R> Signature for unsafe fn($($argument),*) -> R {
            fn sizes(self) -> Vec<usize> {
                vec![$(size_of::<$argument>()),*]
            }
        }
    };
}

impl_signature!();
impl_signature!(A);
impl_signature!(A B);
impl_signature!(A B C);
impl_signature!(A B C D);
impl_signature!(A B C D E);
impl_signature!(A B C D E F);
impl_signature!(A B C D E F G H I J K);

/// Expands to `_` for each argument.
macro_rules! any {
    ($argument:ty) => {
        _
    };
}
pub(super) use any;
