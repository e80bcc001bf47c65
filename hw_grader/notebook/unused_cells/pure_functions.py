"""Functions of torch and numpy whose result is made of their arguments alone: no state, no file, no random number."""

_TORCH = """
    BoolTensor Size Tensor abs abs_ absolute acos acos_ acosh acosh_ adaptive_avg_pool1d adaptive_max_pool1d add
    addbmm addcdiv addcmul addmm addmv addmv_ addr adjoint affine_grid_generator all allclose amax amin aminmax
    angle any arange arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan_ arctanh
    arctanh_ argmax argmin argsort argwhere as_strided as_strided_ as_strided_scatter as_tensor asarray asin asin_
    asinh asinh_ atan atan2 atan_ atanh atanh_ atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm bartlett_window
    bfloat16 bilinear binary_cross_entropy_with_logits bincount bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor blackman_window block_diag bmm broadcast_tensors broadcast_to
    bucketize can_cast cartesian_prod cat cdist ceil ceil_ celu celu_ chain_matmul channel_shuffle cholesky
    cholesky_inverse cholesky_solve chunk clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ clone
    column_stack combinations complex complex128 complex64 concat concatenate conj conj_physical conj_physical_
    constant_pad_nd contiguous_format conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
    conv_transpose3d convolution copysign corrcoef cos cos_ cosh cosh_ cosine_embedding_loss cosine_similarity
    count_nonzero cov cross ctc_loss cummax cummin cumprod cumsum cumulative_trapezoid deg2rad deg2rad_ det detach
    detach_ diag diag_embed diagflat diagonal diagonal_scatter diff digamma dist div divide dot dsmm dsplit dstack e
    einsum embedding embedding_bag embedding_renorm_ empty empty_like empty_permuted empty_strided enable_grad eq
    equal erf erf_ erfc erfc_ erfinv exp exp2 exp2_ exp_ expm1 expm1_ eye fill fill_ finfo fix fix_ flatten flip
    fliplr flipud float_power floor floor_ floor_divide fmax fmin fmod frac frac_ frexp frobenius_norm from_numpy
    frombuffer full full_like gather gcd gcd_ ge geqrf ger gradient greater greater_equal grid_sampler
    grid_sampler_2d grid_sampler_3d group_norm gt half hamming_window hann_window hardshrink hash_tensor heaviside
    hinge_embedding_loss histc histogram histogramdd hsmm hsplit hstack hypot i0 i0_ igamma igammac iinfo imag
    index_add index_fill index_put index_put_ index_reduce index_select inf inner inverse is_complex is_conj
    is_distributed is_floating_point is_inference is_neg is_nonzero is_same_size is_signed is_tensor isclose isin
    isinf isnan isneginf isposinf isreal istft kaiser_window kl_div kron kthvalue layer_norm lcm lcm_ ldexp ldexp_
    le lerp less less_equal lgamma linspace log log10 log10_ log1p log1p_ log2 log2_ log_ log_softmax logaddexp
    logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logit_ logspace logsumexp lt
    lu lu_solve lu_unpack margin_ranking_loss masked_fill masked_scatter masked_select matmul matrix_exp
    matrix_power max max_pool1d max_pool2d max_pool3d maximum mean median meshgrid min minimum mm mode moveaxis
    movedim msort mul multiply mv mvlgamma nan nan_to_num nan_to_num_ nanmean nanmedian nanquantile nansum narrow ne
    neg neg_ negative negative_ newaxis nextafter nonzero nonzero_static norm norm_except_dim not_equal nuclear_norm
    numel ones ones_like orgqr ormqr outer pairwise_distance pdist permute pi pinverse pixel_shuffle pixel_unshuffle
    polar polygamma positive pow prelu preserve_format prod promote_types put qr quantile rad2deg rad2deg_ range
    ravel real reciprocal reciprocal_ relu relu_ remainder renorm repeat_interleave reshape resize_as_ resolve_conj
    resolve_neg result_type rms_norm roll rot90 round round_ row_stack rsqrt rsqrt_ rsub saddmm scalar_tensor
    scatter scatter_add scatter_reduce searchsorted segment_reduce select select_scatter selu selu_ sgn short
    sigmoid sigmoid_ sign signbit sin sin_ sinc sinc_ sinh sinh_ slice_inverse slice_scatter slogdet smm softmax
    sort split split_with_sizes spmm sqrt sqrt_ square square_ squeeze sspaddmm stack std std_mean stft strided sub
    subtract sum svd swapaxes swapdims t take take_along_dim tan tan_ tanh tanh_ tensor tensor_split tensordot
    threshold threshold_ tile topk trace transpose trapezoid trapz triangular_solve tril tril_indices
    triplet_margin_loss triu triu_indices true_divide trunc trunc_ uint8 unbind unflatten unique unique_consecutive
    unravel_index unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze vander var var_mean vdot
    view_as_complex view_as_real vmap vsplit vstack where xlogy xlogy_ zero_ zeros zeros_like
"""
_NUMPY = """
    abs absolute acos acosh add all allclose amax amin angle any append apply_along_axis apply_over_axes arange
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere around array
    array2string array_equal array_equiv array_split asanyarray asarray asarray_chkfinite ascontiguousarray
    asfortranarray asin asinh astype atan atan2 atanh atleast_1d atleast_2d atleast_3d average bartlett base_repr
    binary_repr bincount bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor blackman block bmat bool_ broadcast_arrays broadcast_shapes broadcast_to
    busday_count busday_offset c_ can_cast cbrt ceil choose clip column_stack common_type complex128 complex64
    compress concat concatenate conj conjugate convolve copy copysign copyto corrcoef correlate cos cosh
    count_nonzero cov cross cumprod cumsum cumulative_prod cumulative_sum datetime_as_string datetime_data deg2rad
    degrees delete diag diag_indices diag_indices_from diagflat diagonal diff digitize divide divmod dot dsplit
    dstack dtype e ediff1d einsum einsum_path empty empty_like equal exp exp2 expand_dims expm1 extract eye fabs
    fill_diagonal finfo fix flatnonzero flip fliplr flipud float16 float32 float64 floating floor floor_divide fmax
    fmin fmod frexp from_dlpack frombuffer fromfunction fromiter full full_like gcd generic geomspace gradient
    greater greater_equal hamming hanning heaviside histogram histogram2d histogram_bin_edges histogramdd hsplit
    hstack hypot i0 identity iinfo imag indices inf inner insert int16 int32 int64 int8 integer interp intersect1d
    intp invert is_busday isclose iscomplex iscomplexobj isdtype isfinite isfortran isin isinf isnan isnat isneginf
    isposinf isreal isrealobj isscalar issubdtype iterable ix_ kaiser kron lcm ldexp left_shift less less_equal
    lexsort linspace log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logspace mask_indices matmul matvec max maximum mean median meshgrid mgrid min min_scalar_type minimum
    mintypecode mod modf moveaxis multiply nan nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean
    nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar ndarray ndim negative nested_iters
    newaxis nextafter nonzero not_equal number ogrid ones ones_like outer packbits pad partition percentile
    permute_dims pi piecewise place poly polyadd polyder polydiv polyfit polyint polymul polysub polyval positive
    pow power prod promote_types ptp put put_along_axis putmask quantile r_ rad2deg radians ravel ravel_multi_index
    real real_if_close remainder repeat require reshape resize result_type right_shift rint roll rollaxis roots
    rot90 round row_stack s_ searchsorted select shape sign signbit sin sinc sinh size sort sort_complex spacing
    split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace
    transpose trapezoid tri tril tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from
    true_divide trunc typename uint16 uint32 uint64 uint8 union1d unique unique_all unique_counts unique_inverse
    unique_values unpackbits unravel_index unstack unwrap vander var vdot vecdot vecmat vectorize vsplit vstack
    where zeros zeros_like
"""
PURE = frozenset(
    f"{module}.{name}" for module, names in (("torch", _TORCH), ("numpy", _NUMPY)) for name in names.split()
)
