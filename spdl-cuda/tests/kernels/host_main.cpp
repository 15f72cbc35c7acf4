// Runs the kernels on the host. Reads the input from standard input, with numbers of 64 bits in native
// byte order:
//
//     number of buffers; for each the length and the bytes
//     length and bytes of the table
//     number of launches; for each the length of the kernel name, the name, the offset of the first
//     entry in the table, and the grid dimensions on three axes
//     number of output buffers, which are the last ones
//
// An address in the table is the number of a buffer, counted from 1, times 2⁴⁰, plus an offset.
// Writes the output buffers. Each buffer is a separate allocation, so that the sanitizer detects every
// access outside it.

#include "../../kernels/image.cu"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

using Bytes = std::unique_ptr<unsigned char[]>;

struct Buffer {
    std::uint64_t length;
    Bytes bytes;
};

struct Launch {
    std::string kernel;
    std::uint64_t offset;
    std::uint64_t grid[3];
};

[[noreturn]] void fail(const char *message)
{
    std::fprintf(stderr, "%s\n", message);
    std::exit(1);
}

void read_bytes(void *place, std::size_t length)
{
    if (std::fread(place, 1, length, stdin) != length)
        fail("truncated input");
}

std::uint64_t read_number()
{
    std::uint64_t number;
    read_bytes(&number, sizeof number);
    return number;
}

Buffer read_buffer()
{
    std::uint64_t length = read_number();
    Buffer buffer{length, Bytes(new unsigned char[length])};
    read_bytes(buffer.bytes.get(), length);
    return buffer;
}

std::vector<Buffer> copies_of(const std::vector<Buffer> &buffers)
{
    std::vector<Buffer> copies;
    for (const Buffer &buffer : buffers) {
        copies.push_back({buffer.length, Bytes(new unsigned char[buffer.length])});
        std::memcpy(copies.back().bytes.get(), buffer.bytes.get(), buffer.length);
    }
    return copies;
}

unsigned long long address_of(unsigned long long place, const std::vector<Buffer> &buffers)
{
    std::uint64_t number = place >> 40;
    if (number == 0 || number > buffers.size())
        fail("address outside all buffers");
    auto first = reinterpret_cast<std::uintptr_t>(buffers[number - 1].bytes.get());
    return first + (place & ((1ull << 40) - 1));
}

using Kernel = void (*)(const Image *, int, int, int);

Kernel kernel_of(const std::string &name)
{
#define NAMED(kernel)                                                                  \
    if (name == #kernel)                                                               \
        return kernel;
    NAMED(image_u8_whole)
    NAMED(image_u8_subsampled)
    NAMED(image_u16_whole)
    NAMED(image_u16_subsampled)
    fail("unknown kernel");
}

// Runs threads and blocks in ascending or descending order.
void run(const std::vector<Launch> &launches, const Buffer &table, bool in_reverse,
         const std::vector<Buffer> &buffers)
{
    threads_in_reverse = in_reverse;
    for (const Launch &launch : launches) {
        Kernel kernel = kernel_of(launch.kernel);
        std::vector<Image> images(launch.grid[2]);
        std::size_t bytes = images.size() * sizeof(Image);
        if (launch.offset + bytes > table.length)
            fail("launch outside the table");
        std::memcpy(static_cast<void *>(images.data()), table.bytes.get() + launch.offset, bytes);
        for (Image &image : images) {
            for (Component &component : image.components)
                component.samples = address_of(component.samples, buffers);
            image.output = address_of(image.output, buffers);
        }
        std::uint64_t blocks = launch.grid[0] * launch.grid[1] * launch.grid[2];
        for (std::uint64_t turn = 0; turn < blocks; turn++) {
            std::uint64_t block = in_reverse ? blocks - 1 - turn : turn;
            int x = block % launch.grid[0];
            int y = block / launch.grid[0] % launch.grid[1];
            int z = block / launch.grid[0] / launch.grid[1];
            kernel(images.data(), x, y, z);
        }
    }
}

} // namespace

int main()
{
    std::vector<Buffer> buffers(read_number());
    for (Buffer &buffer : buffers)
        buffer = read_buffer();
    Buffer table = read_buffer();
    std::vector<Launch> launches(read_number());
    for (Launch &launch : launches) {
        Buffer name = read_buffer();
        launch.kernel.assign(reinterpret_cast<char *>(name.bytes.get()), name.length);
        launch.offset = read_number();
        for (std::uint64_t &blocks : launch.grid)
            blocks = read_number();
    }
    std::uint64_t written = read_number();
    if (written > buffers.size())
        fail("more output buffers than buffers");
    std::vector<Buffer> others = copies_of(buffers);
    run(launches, table, false, buffers);
    for (std::size_t at = buffers.size() - written; at < buffers.size(); at++)
        std::fwrite(buffers[at].bytes.get(), 1, buffers[at].length, stdout);
    // Large images run in one order only, to save time.
    std::uint64_t blocks = 0;
    for (const Launch &launch : launches)
        blocks += launch.grid[0] * launch.grid[1] * launch.grid[2];
    if (blocks > 1000)
        return 0;
    run(launches, table, true, others);
    for (std::size_t at = 0; at < buffers.size(); at++)
        if (std::memcmp(buffers[at].bytes.get(), others[at].bytes.get(), others[at].length) != 0)
            fail("the result depends on the order of threads and blocks");
    return 0;
}
